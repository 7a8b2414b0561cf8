package phase

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// decode reads carried data. Strictly, it refuses fields that the type does not have, and data without a field that the
// type has: a field that was renamed must not be zero without a word. A field may be missing, or null, if the type
// leaves it out when it is empty (omitempty, omitzero), or if it is nil then, as a pointer is.
func decode[T any](raw json.RawMessage, strict bool) (*T, error) {
	data := new(T)
	decoder := json.NewDecoder(bytes.NewReader(raw))
	if strict {
		decoder.DisallowUnknownFields()
	}
	if err := decoder.Decode(data); err != nil {
		return nil, fmt.Errorf("phase: the carried data does not fit its type: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("phase: the carried data is followed by more")
	}
	if !strict {
		return data, nil
	}
	// What the type would have written shows which fields it has, by the rules of encoding/json alone.
	written, err := json.Marshal(data)
	if err != nil {
		return nil, fmt.Errorf("phase: the carried data cannot be written again: %w", err)
	}
	if field := missing(parse(written), withoutNulls(parse(raw))); field != "" {
		return nil, fmt.Errorf("phase: the carried data lacks the field %q", field)
	}
	return data, nil
}

// parse makes maps and slices of valid JSON.
func parse(raw []byte) (value any) {
	_ = json.Unmarshal(raw, &value)
	return value
}

// withoutNulls leaves out the members that are null: encoding/json leaves a field as it is then, as if there were none.
func withoutNulls(value any) any {
	switch value := value.(type) {
	case map[string]any:
		maps.DeleteFunc(value, func(_ string, member any) bool { return withoutNulls(member) == nil })
	case []any:
		for _, element := range value {
			withoutNulls(element)
		}
	}
	return value
}

// missing is the path of the first member that want has with a value and got lacks; empty if there is none.
func missing(want, got any) string {
	switch want := want.(type) {
	case map[string]any:
		members, _ := got.(map[string]any)
		for _, name := range slices.Sorted(maps.Keys(want)) {
			value := want[name]
			member, there := lookUp(members, name)
			if !there && value != nil {
				return name
			}
			if path := missing(value, member); there && path != "" {
				return name + "." + path
			}
		}
	case []any:
		elements, _ := got.([]any)
		for i, value := range want {
			if i >= len(elements) {
				return fmt.Sprint(i)
			}
			if path := missing(value, elements[i]); path != "" {
				return fmt.Sprint(i, ".", path)
			}
		}
	}
	return ""
}

// lookUp finds a member as encoding/json does, which does not tell large letters from small ones where none fits
// exactly.
func lookUp(members map[string]any, name string) (any, bool) {
	if member, ok := members[name]; ok {
		return member, true
	}
	for other, member := range members {
		if strings.EqualFold(other, name) {
			return member, true
		}
	}
	return nil, false
}
