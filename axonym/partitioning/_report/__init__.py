"""What is known of a sharded tree: its problems, bytes, reports, pictures and locks, one file for each."""
