"""What several tests share: tiny models, fake engines, a cache with fake bytes, graphs as processes."""
