package canon

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// omission stands for an array element, or a whole document, that does not count. No JSON value begins with it, so it
// is not mistaken for one.
const omission = '_'

// Selection selects the parts of a document that count. A nil Selection selects everything. A Selection never changes,
// so that it may be shared.
type Selection struct {
	root node
}

// node is a position in a document that a pointer leads to or through.
type node struct {
	included, ignored bool
	members           map[string]*node // by the canonical text of their names
	elements          map[int]*node
}

// Select returns the Selection of the parts that the JSON pointers (RFC 6901) in include point to, without the parts
// that the pointers in ignore point to. If include is empty, everything is included.
//
// A member that does not count is treated as absent. An array element that does not count leaves a mark of its
// position. An array or object of which only some content is included counts only as the container of that content;
// without any of it, it is treated as absent too.
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

// descend returns the node that pointer leads to from n, and creates missing nodes.
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

// child returns the node of the member or element called name, and creates it if it is missing.
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

// view is what a Selection selects of one value.
type view struct {
	included bool
	node     *node // nil if no pointer continues from here
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

// to returns the view of the value inside v's value that n describes.
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
