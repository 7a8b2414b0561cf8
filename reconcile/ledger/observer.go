package ledger

// FindingEvent reports a difference between a provider's ledger and the local one to the [onceward.Observer].
type FindingEvent struct {
	// Run names the comparison, and Kind the difference.
	Run  string
	Kind string
	Key  string
}

// WindowEvent reports the result of a window that was due to the [onceward.Observer].
type WindowEvent struct {
	// Run names the comparison and the window.
	Run string
	// Outcome is "compared", "failed" or "given up".
	Outcome string
	// Attempts is how often it could not be compared, and Err the current error.
	Attempts int
	Err      error
}
