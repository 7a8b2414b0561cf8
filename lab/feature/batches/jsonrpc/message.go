package jsonrpc

import "encoding/json"

type call struct {
	Version string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Method  string          `json:"method"`
	Params  json.RawMessage `json:"params"`
}

// reply gives a reply the id of the call that it answers: a retry may have another. A notification has none.
func (c *call) reply(r *reply) *reply {
	if c.ID == nil {
		return nil
	}
	r.ID = c.ID
	return r
}

// reply is an answer, and without its id what is stored.
type reply struct {
	ID     json.RawMessage
	Result json.RawMessage
	Error  *Error
}

// Error is an error object. After one with the Code -32603 a retry executes; any other is kept and replayed.
type Error struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
	Data    any    `json:"data,omitempty"`
}

// MarshalJSON leaves out what an answer does not have, but not its id.
func (r reply) MarshalJSON() ([]byte, error) {
	members := map[string]any{"jsonrpc": "2.0", "id": r.ID}
	if r.Error != nil {
		members["error"] = r.Error
	} else {
		members["result"] = r.Result
	}
	return json.Marshal(members)
}
