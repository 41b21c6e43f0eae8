"""What both sides build their connections from: framed channels, listeners, bounded waits, tasks that end together."""
