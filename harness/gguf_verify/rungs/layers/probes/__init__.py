"""A type's kernel beyond the products of the graph: at the shapes of the probe plan (`envelope`), up to the limits of
its grids (`limits`), with indices past 2^31 (`huge`), and with other routings of tokens to experts (`routings`)."""
