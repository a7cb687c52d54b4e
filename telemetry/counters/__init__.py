"""What NICs, cables, optics, PCIe and drivers count about themselves. Pure parsers, thin shell."""
