package check

import "github.com/onceward/onceward/lab/chaos/internal/history"

var callCorruptions = []corruption{
	{"a caller that was not told", func(s *story) { s.call("answered", 0) }, []string{"I18"}},
	{"an operation of a caller that ended without an answer", func(s *story) { s.call("unknown", 1) }, []string{"I18"}},
	{"an operation of a caller that was never finished", func(s *story) { s.call("pending", 0) }, []string{"I18"}},
}

// call adds an operation of a caller, which is the transfer of the story.
func (s *story) call(state string, heard int) {
	o := s.attemptOf("moved", 1)
	s.Calls = append(s.Calls, history.Call{Scope: o.Scope, Key: o.Key, State: state, Heard: heard})
}
