"""dload: versioned data sets in one bucket, streamed into training through a local cache."""
