"""What a cluster is, what a request asks for, and `decide`. Pure: no clock, no log, no IO."""
