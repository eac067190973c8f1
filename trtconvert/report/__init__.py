"""`verify --report`: one HTML file that shows what was compared, where, and how far apart the numbers are."""
