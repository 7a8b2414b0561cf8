package check

// checkSteps is I15: when a phased operation has succeeded all its steps were done, each once, also those behind one
// that was settled from outside. The last step is one that only newer nodes know.
func checkSteps(o *operation, f *findings) {
	for _, a := range o.requests(success) {
		if a.Kind != kindTrip {
			return
		}
		for _, step := range []string{"hold", "confirm"} {
			if n := len(o.rowsOf("stay "+step, a.Reference)); n != 1 {
				f.add("I15", o, "a client saw %s, but the step %s was done %d times", describe(a), step, n)
			}
		}
	}
}
