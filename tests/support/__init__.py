"""What tests share: builders, fakes at the edge, real servers and processes to test against."""
