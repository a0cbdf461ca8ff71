"""What commands print: tables, bars, states and sentences."""
