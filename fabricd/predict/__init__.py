"""How likely a link is to fail soon: trends of its FEC, its light, its flaps. Pure."""
