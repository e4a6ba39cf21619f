"""The script that how_it_works.md follows."""

import gt

a = gt.randn(8, 4)
b = gt.randn(4, 2)
c = a @ b
print(c.tolist())
