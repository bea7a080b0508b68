"""HTTP/1.1 as far as those need it who ask a plane: requests in one piece, on connections that are kept.

A general client takes an order of magnitude more processor time for one exchange: more than the plane takes for it.
"""
