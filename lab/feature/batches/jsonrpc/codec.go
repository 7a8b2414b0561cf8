package jsonrpc

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"slices"
)

// read tells calls apart from what is none, which keeps its place.
func read(body io.Reader) (calls []call, single bool, failed *Error) {
	var texts []json.RawMessage
	text, err := io.ReadAll(body)
	if single = !bytes.HasPrefix(bytes.TrimSpace(text), []byte("[")); single {
		texts = []json.RawMessage{text}
	} else if err == nil {
		err = json.Unmarshal(text, &texts)
	}
	switch {
	case err != nil || !json.Valid(text):
		return nil, true, &Error{Code: -32700, Message: "not JSON; nothing was executed"}
	case len(texts) == 0 || len(texts) > maxCalls:
		return nil, true, &Error{Code: -32600, Message: "1 to 100 calls, please; nothing was executed"}
	}
	calls = make([]call, len(texts))
	for i, text := range texts {
		if json.Unmarshal(text, &calls[i]) != nil {
			calls[i] = call{}
		}
	}
	return calls, single, nil
}

// write sends the replies; of a notification there is none.
func write(w http.ResponseWriter, replies []*reply, single bool) {
	replies = slices.DeleteFunc(replies, func(r *reply) bool { return r == nil })
	w.Header().Set("Content-Type", "application/json")
	switch {
	case len(replies) == 0:
		w.WriteHeader(http.StatusNoContent)
	case single:
		_, _ = w.Write(encode(replies[0]))
	default:
		_, _ = w.Write(encode(replies))
	}
}
