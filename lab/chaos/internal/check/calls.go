package check

import "github.com/onceward/onceward/lab/chaos/internal/history"

// checkCalls is I18: what a caller has written into its outbox is answered in the end, and the answer is reported. That it
// was done once, and that the answer is the one which the server keeps, is in the rules for all operations.
func checkCalls(run *history.Run, f *findings) {
	for i := range run.Calls {
		c := &run.Calls[i]
		o := &operation{id: id{c.Scope, c.Key}}
		switch {
		case run.Unsettled && c.State == "pending":
		case c.State != "answered":
			f.add("I18", o, "the caller's operation is %s", c.State)
		case c.Heard == 0 && !run.Unsettled:
			f.add("I18", o, "the caller was not told of the answer")
		}
	}
}
