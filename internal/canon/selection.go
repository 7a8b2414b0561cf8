package canon

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// omission stands for an array element, or a whole document, which does not
// count. No JSON value begins with it, so it is not mistaken for one.
const omission = '_'

// A Selection says which parts of a document count. A nil Selection means that
// everything does. A Selection never changes, so that it may be shared.
type Selection struct {
	root node
}

// A node is a position in a document that a pointer goes to or through.
type node struct {
	included, ignored bool
	members           map[string]*node // by the canonical text of their names
	elements          map[int]*node
}

// Select returns the Selection of what the JSON pointers (RFC 6901) in include
// point to, less what those in ignore point to. If include is empty, everything
// is included.
//
// A member which does not count is as good as absent. An array element which
// does not count leaves a mark of its position. An array or object of which only
// something within is included counts no further than to hold that; without any
// of it, it is as good as absent too.
func Select(include, ignore []string) (*Selection, error) {
	s := new(Selection)
	s.root.included = len(include) == 0
	for _, pointer := range include {
		n, err := s.root.descend(pointer)
		if err != nil {
			return nil, err
		}
		n.included = true
	}
	for _, pointer := range ignore {
		n, err := s.root.descend(pointer)
		if err != nil {
			return nil, err
		}
		n.ignored = true
	}
	return s, nil
}

// descend returns the node which pointer leads to from n, and makes those that
// are missing on the way.
func (n *node) descend(pointer string) (*node, error) {
	if pointer == "" {
		return n, nil
	}
	if pointer[0] != '/' {
		return nil, fmt.Errorf("JSON pointer %q does not begin with a slash", pointer)
	}
	if !utf8.ValidString(pointer) {
		return nil, fmt.Errorf("JSON pointer %q is not valid UTF-8", pointer)
	}
	for token := range strings.SplitSeq(pointer[1:], "/") {
		if strings.Count(token, "~") != strings.Count(token, "~0")+strings.Count(token, "~1") {
			return nil, fmt.Errorf("JSON pointer %q has a ~ without 0 or 1 after it", pointer)
		}
		n = n.child(strings.NewReplacer("~0", "~", "~1", "/").Replace(token))
	}
	return n, nil
}

// child returns the node of the member or element called name, and makes it if
// it is missing.
func (n *node) child(name string) *node {
	var key []byte
	for _, r := range name {
		key = appendChar(key, r)
	}
	if c, ok := n.members[string(key)]; ok {
		return c
	}
	if n.members == nil {
		n.members = make(map[string]*node)
		n.elements = make(map[int]*node)
	}
	c := new(node)
	n.members[string(key)] = c
	if index, err := strconv.Atoi(name); err == nil && strconv.Itoa(index) == name {
		n.elements[index] = c
	}
	return c
}

// A view is what a Selection says of one value.
type view struct {
	included bool
	node     *node // nil if no pointer goes on from here
}

// view returns the view of a whole document.
func (s *Selection) view() view {
	if s == nil {
		return view{included: true}
	}
	return view{}.to(&s.root)
}

// member returns the view of the member whose name has the canonical text name.
func (v view) member(name []byte) view {
	if v.node == nil {
		return v
	}
	return v.to(v.node.members[string(name)])
}

// element returns the view of the array element at index.
func (v view) element(index int) view {
	if v.node == nil {
		return v
	}
	return v.to(v.node.elements[index])
}

// to returns the view of the value inside v's value which n is about.
func (v view) to(n *node) view {
	switch {
	case n == nil:
		return view{included: v.included}
	case n.ignored:
		return view{}
	default:
		return view{included: v.included || n.included, node: n}
	}
}
