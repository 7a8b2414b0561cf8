package ledger

// FindingEvent is a difference between a provider's ledger and the local one: it goes to the [onceward.Observer].
type FindingEvent struct {
	// Run names the comparison, and Kind the difference.
	Run  string
	Kind string
	Key  string
}

// WindowEvent is what became of a window of a comparison that was due: it goes to the [onceward.Observer].
type WindowEvent struct {
	// Run names the comparison and the window.
	Run string
	// Outcome is "compared", "failed" or "given up".
	Outcome string
	// Attempts is how often it could not be compared, and Err why it could not be now.
	Attempts int
	Err      error
}
