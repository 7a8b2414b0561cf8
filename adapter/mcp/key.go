package oncewardmcp

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/canon"
)

// Intent derives the key of a call from the purpose of the call. It helps if neither the client nor the model can send
// a key, but it has a cost: an intended repetition, such as the same order for the second time, has the same key as a
// retry, and gets the first answer. That holds until the record expires: choose [onceward.Retain] accordingly, and use
// Within to separate operations that are meant to happen again.
//
// A call with the same intent and different other arguments is refused as a mismatch, and not executed.
type Intent struct {
	// Arguments are the names of the arguments that identify the purpose, such as guest and time. At least one name is
	// required. A call must contain at least one of these arguments; a null argument counts as missing.
	Arguments []string
	// Within returns the context that the intent belongs to, such as the conversation: the same call in another context
	// is another operation. The value must be the same for a retry on a new connection. So the id of the MCP session or
	// of the JSON-RPC request is not suitable, and neither is the hour, because a retry may arrive in the next hour.
	// Default: the whole scope is one context.
	Within func(req *mcp.CallToolRequest) string
}

func (i *Intent) check(keyArgument string) error {
	switch {
	case len(i.Arguments) == 0:
		return errors.New("Intent.Arguments is empty: name the arguments that say what is meant")
	case keyArgument != "" && slices.Contains(i.Arguments, keyArgument):
		return fmt.Errorf("Intent.Arguments has the key argument %q: it is no part of what is meant", keyArgument)
	default:
		return nil
	}
}

// key derives the key. It is a hash without a secret: if a secret changed, a retry of an older call would be executed
// again.
func (i *Intent) key(req *mcp.CallToolRequest, arguments map[string]json.RawMessage) (string, error) {
	within := ""
	if i.Within != nil {
		within = i.Within(req)
	}
	parts := [][]byte{[]byte(req.Params.Name), []byte(within)}
	named := 0
	for _, name := range slices.Compact(slices.Sorted(slices.Values(i.Arguments))) {
		value := arguments[name]
		if len(value) == 0 || string(value) == "null" { // a retry may omit a null argument
			continue
		}
		exact, err := canon.Append(nil, value, nil)
		if err != nil {
			return "", err
		}
		parts = append(parts, []byte(name), exact)
		named++
	}
	if named == 0 {
		return "", onceward.ErrNoKey
	}
	return "intent-" + hex.EncodeToString(onceward.Payload(parts...)), nil
}

// identity is the key of a call, and its arguments without the key.
type identity struct {
	key       string
	payload   []byte          // the canonical form of the arguments
	arguments json.RawMessage // for the tool, without the key argument
}

// identify returns the key of a call and its arguments without the key. For a call without a key it returns
// [onceward.ErrNoKey] together with the other fields.
func (p *protection) identify(req *mcp.CallToolRequest) (who identity, err error) {
	arguments := make(map[string]json.RawMessage)
	if len(req.Params.Arguments) > 0 {
		// This check rejects invalid JSON, and duplicate names, which a map would hide.
		if _, err := canon.Append(nil, req.Params.Arguments, nil); err != nil {
			return who, fmt.Errorf("%w: %w", errArguments, err)
		}
		if err := json.Unmarshal(req.Params.Arguments, &arguments); err != nil {
			return who, fmt.Errorf("%w: %w", errArguments, err)
		}
	}
	if arguments == nil { // the arguments were null
		arguments = make(map[string]json.RawMessage)
	}
	given, hasArgument := arguments[p.KeyArgument]
	delete(arguments, p.KeyArgument)
	who.arguments, err = json.Marshal(arguments)
	if err == nil {
		who.payload, err = canon.Append(nil, who.arguments, nil)
	}
	if err != nil {
		return who, fmt.Errorf("%w: %w", errArguments, err)
	}
	switch inMeta, hasMeta := req.Params.Meta[MetaKey]; {
	case p.KeyArgument != "" && hasArgument:
		who.key, err = textKey(given)
	case hasMeta:
		who.key, err = metaKey(inMeta)
	case p.Intent != nil:
		who.key, err = p.Intent.key(req, arguments)
	default:
		err = onceward.ErrNoKey
	}
	return who, err
}

// errArguments is returned if the arguments of a call are invalid or ambiguous.
var errArguments = errors.New("the arguments cannot be read")

func textKey(value json.RawMessage) (string, error) {
	var key any
	if err := json.Unmarshal(value, &key); err != nil {
		return "", fmt.Errorf("%w: %w", onceward.ErrBadKey, err)
	}
	return metaKey(key)
}

func metaKey(value any) (string, error) {
	key, ok := value.(string)
	if !ok {
		return "", fmt.Errorf("%w: it is not a string", onceward.ErrBadKey)
	}
	if key == "" {
		return "", fmt.Errorf("%w: it is empty", onceward.ErrBadKey)
	}
	return key, nil
}
