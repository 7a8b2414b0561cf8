// Package strict decodes carried data: JSON that a program has stored, possibly for a later version of itself.
package strict

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

// Decode decodes carried data into the value that data points to. If strictly is set, it
// refuses fields that the type does not have, and data without a field of the type, because
// a renamed field must not silently become zero. A field may be missing, or null, if the
// type omits it when it is empty (omitempty, omitzero), or if it can be nil, like a pointer.
func Decode(raw []byte, data any, strictly bool) error {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	if strictly {
		decoder.DisallowUnknownFields()
	}
	if err := decoder.Decode(data); err != nil {
		return fmt.Errorf("the carried data does not fit its type: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("the carried data is followed by more")
	}
	if !strictly {
		return nil
	}
	// The encoded value shows which fields the type has, by the rules of encoding/json.
	written, err := json.Marshal(data)
	if err != nil {
		return fmt.Errorf("the carried data cannot be written again: %w", err)
	}
	if field := missing(parse(written), withoutNulls(parse(raw))); field != "" {
		return fmt.Errorf("the carried data lacks the field %q", field)
	}
	return nil
}

// Missing returns the path of the first member that want has with a
// value other than null and got does not have; empty if there is none.
func Missing(want, got []byte) string { return missing(parse(want), parse(got)) }

// parse decodes valid JSON into maps and slices.
func parse(raw []byte) (value any) {
	_ = json.Unmarshal(raw, &value)
	return value
}

// withoutNulls removes the members that are null: encoding/json ignores them, as if they were missing.
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

// missing returns the path of the first member that want has
// with a value and got does not have; empty if there is none.
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

// lookUp finds a member as encoding/json does, which ignores case if there is no exact match.
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
