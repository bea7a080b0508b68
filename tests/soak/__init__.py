"""Load on real servers and real processes, for as long as you like, with everything that can go wrong going wrong."""
