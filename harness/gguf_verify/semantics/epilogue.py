"""What is fused behind a product.

Rungs judge a product in parts: some rows of the weights, some tokens. So an extra operand of an output element may be a
function of its own row's bytes and its own token's bytes alone, never of the whole matrix: a bias b[n] of the bytes of
row n, a residual r[m, n] of those of row n and token m, the `up` matrix's row n of those of row n (its blocks in
another order along K). Then what a part expects is what the whole call was given.
"""
