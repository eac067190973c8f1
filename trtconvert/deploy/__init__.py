"""A plan taken to where it serves: Triton, a C++ program, trtexec."""
