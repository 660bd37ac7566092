"""What a function of a column or view is: its signature, its envelope, and what becomes of rows it fails on."""
