"""What REST does with records and with writes: load, decide, save and say."""
