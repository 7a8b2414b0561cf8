package history

import "fmt"

// line is one line of a file: exactly one field is set.
type line struct {
	Attempt *Attempt `json:"attempt,omitempty"`
	Write   *Write   `json:"write,omitempty"`
	// Begin and End are the two halves of a write in a node's journal.
	Begin   *Write   `json:"begin,omitempty"`
	End     *Write   `json:"end,omitempty"`
	Record  *Record  `json:"record,omitempty"`
	Effect  *Effect  `json:"effect,omitempty"`
	Row     *Row     `json:"row,omitempty"`
	Message *Message `json:"message,omitempty"`
	Fault   Fault    `json:"fault,omitempty"`
	Plan    Plan     `json:"plan,omitempty"`
}

// lineOf wraps a fact for writing.
func lineOf(fact any) (line, error) {
	switch f := fact.(type) {
	case Attempt:
		return line{Attempt: &f}, nil
	case Write:
		return line{Write: &f}, nil
	case Record:
		return line{Record: &f}, nil
	case Effect:
		return line{Effect: &f}, nil
	case Row:
		return line{Row: &f}, nil
	case Message:
		return line{Message: &f}, nil
	case Fault:
		return line{Fault: f}, nil
	case Plan:
		return line{Plan: f}, nil
	default:
		return line{}, fmt.Errorf("history: a %T cannot be recorded: add one of the types of this package, by value", fact)
	}
}
