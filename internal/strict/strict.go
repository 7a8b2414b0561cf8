// Package strict decodes carried data: JSON that a program has stored for a later one, which may be of another version.
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

// Decode reads carried data into what a pointer points to. Strictly, it refuses fields that the type does not have, and
// data without a field that the type has: a field that was renamed must not be zero without a word. A field may be
// missing, or null, if the type leaves it out when it is empty (omitempty, omitzero), or if it is nil then, as a
// pointer is.
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
	// What the type would have written shows which fields it has, by the rules of encoding/json alone.
	written, err := json.Marshal(data)
	if err != nil {
		return fmt.Errorf("the carried data cannot be written again: %w", err)
	}
	if field := missing(parse(written), withoutNulls(parse(raw))); field != "" {
		return fmt.Errorf("the carried data lacks the field %q", field)
	}
	return nil
}

// Missing is the path of the first member that one JSON value has, other than null, and another one lacks; empty if
// there is none.
func Missing(want, got []byte) string { return missing(parse(want), parse(got)) }

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
