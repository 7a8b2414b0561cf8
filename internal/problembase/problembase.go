// Package problembase checks the base URL of problem types, which precedes the problem's code.
package problembase

import (
	"fmt"
	"net/url"
	"strings"
)

// Check refuses a base that is not a usable URL, or that does not separate the code.
func Check(base string) error {
	u, err := url.Parse(base)
	if err != nil {
		return err
	}
	if !u.IsAbs() && !strings.HasPrefix(base, "/") {
		return fmt.Errorf("%q is neither an absolute URI nor a path from the root: a client could not follow it", base)
	}
	if !strings.ContainsAny(base[len(base)-1:], "/#=:?") {
		return fmt.Errorf("%q must end in one of / # = : ? because the code comes right behind it: "+
			"as it is, a type would be %q", base, base+"missing-key")
	}
	return nil
}
