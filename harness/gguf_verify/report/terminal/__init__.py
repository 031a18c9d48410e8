"""Reports at the terminal, one module a kind of result. It reads typed results and `report`'s grid, and uses rich."""
