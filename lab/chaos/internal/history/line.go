package history

// line is one line of a file: exactly one field is set.
type line struct {
	Attempt *Attempt `json:"attempt,omitempty"`
	// Begin and End are the two halves of a write in a node's journal.
	Begin     *Write     `json:"begin,omitempty"`
	End       *Write     `json:"end,omitempty"`
	Record    *Record    `json:"record,omitempty"`
	Effect    *Effect    `json:"effect,omitempty"`
	Row       *Row       `json:"row,omitempty"`
	Stock     *Stock     `json:"stock,omitempty"`
	Message   *Message   `json:"message,omitempty"`
	Act       *Act       `json:"act,omitempty"`
	Call      *Call      `json:"call,omitempty"`
	Audit     *Audit     `json:"audit,omitempty"`
	Forgery   *Forgery   `json:"forgery,omitempty"`
	Finding   *Finding   `json:"finding,omitempty"`
	Step      *Step      `json:"step,omitempty"`
	FailOver  *FailOver  `json:"fail_over,omitempty"`
	FrontLoss *FrontLoss `json:"front_loss,omitempty"`
	Slot      *Slot      `json:"slot,omitempty"`
	Fault     *fault     `json:"fault,omitempty"`
	// Planned is the name of a fault that has to fire at least once.
	Planned string `json:"planned,omitempty"`
	// Unsettled says that not everything had become quiet.
	Unsettled bool `json:"unsettled,omitempty"`
}

// fault says how often a fault fired.
type fault struct {
	Name  string `json:"name"`
	Times int    `json:"times"`
}
