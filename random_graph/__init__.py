"""Random graphs: what single operations cannot find."""
