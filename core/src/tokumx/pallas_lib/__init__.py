"""Small pieces that kernels of several ops share."""
