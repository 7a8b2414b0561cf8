package jsonrpc

import (
	"bytes"
	"encoding/json"
	"net/http"

	"github.com/onceward/onceward"
)

// answer is what is stored of a call. Its status decides what becomes of the transaction and of the key.
func answer(result any, failed *Error) onceward.Answer {
	value, err := json.Marshal(result)
	switch {
	case err != nil:
		return answer(nil, &Error{Code: -32603, Message: "the result cannot be encoded"})
	case failed == nil:
		return onceward.Answer{Body: encode(reply{Result: value})}
	case failed.Code == -32603:
		return onceward.Answer{Status: http.StatusInternalServerError, Body: encode(reply{Error: failed})} // undone
	default:
		return onceward.Answer{Status: http.StatusUnprocessableEntity, Body: encode(reply{Error: failed})} // and stored
	}
}

// canonical makes equal params equal bytes, and different numbers different ones.
func canonical(params json.RawMessage) []byte {
	var value any
	decoder := json.NewDecoder(bytes.NewReader(params))
	decoder.UseNumber()
	if decoder.Decode(&value) != nil {
		return params
	}
	return encode(value)
}

func encode(value any) []byte {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err) // a server's own types
	}
	return text
}
