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

// Intent derives the key of a call from what the call is meant to do. It helps where neither the client nor the model
// can be taught to send a key, at a price: a repetition that is meant, such as the same order for the second time, has
// the same key as a retry, and gets the answer of the first. That holds until the record expires: choose
// [onceward.Retain] so, and let Within tell apart what is meant to happen again.
//
// A call with the same intent and other arguments beside it is refused as a mismatch, and not executed.
type Intent struct {
	// Arguments are the names of those that say what is meant, such as guest and time. At least one is required, and a
	// call has to bring at least one of them; one that is null counts as missing.
	Arguments []string
	// Within names what the intent belongs to, such as the conversation: the same call within another one is another
	// operation. It must be the same for a retry on a new connection, so an id of the MCP session or of the JSON-RPC
	// request does not do, nor does the hour: a retry may come after the next one has begun. Default: everything of the
	// scope belongs together.
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

// key derives the key. It is a plain hash: one under a secret would change with the secret, and a retry from before
// would be executed again.
func (i *Intent) key(req *mcp.CallToolRequest, arguments map[string]json.RawMessage) (string, error) {
	within := ""
	if i.Within != nil {
		within = i.Within(req)
	}
	parts := [][]byte{[]byte(req.Params.Name), []byte(within)}
	named := 0
	for _, name := range slices.Compact(slices.Sorted(slices.Values(i.Arguments))) {
		value := arguments[name]
		if len(value) == 0 || string(value) == "null" { // a retry may leave out what was null
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

// identity is what a call says about itself.
type identity struct {
	key       string
	payload   []byte          // the canonical form of the arguments
	arguments json.RawMessage // for the tool, which does not know the key argument
}

// identify finds the key of a call and what the call means without it. Of a call without a key the error is
// [onceward.ErrNoKey], and the rest is there.
func (p *protection) identify(req *mcp.CallToolRequest) (who identity, err error) {
	arguments := make(map[string]json.RawMessage)
	if len(req.Params.Arguments) > 0 {
		// Beside duplicate names, which a map would hide, this refuses what is no JSON.
		if _, err := canon.Append(nil, req.Params.Arguments, nil); err != nil {
			return who, fmt.Errorf("%w: %w", errArguments, err)
		}
		if err := json.Unmarshal(req.Params.Arguments, &arguments); err != nil {
			return who, fmt.Errorf("%w: %w", errArguments, err)
		}
	}
	if arguments == nil { // of null
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

// errArguments is returned when the arguments of a call have no single meaning.
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
