//go:build !onceward_mutants

package node

import (
	"fmt"

	"github.com/onceward/onceward/internal/storeurl"
)

// mutate makes no mistakes: this program was not built for it.
func mutate(store storeurl.Store, mutant string) (storeurl.Store, error) {
	if mutant != "" {
		return nil, fmt.Errorf("the mutant %q is not in this program: build it with -tags onceward_mutants", mutant)
	}
	return store, nil
}
