package importrules

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"testing"
)

// rootNeeds are the modules that the root module may use, and rootTestNeeds those that its tests may use beside them:
// every user of the middleware gets them, or sees them in go.sum.
var (
	rootNeeds     = []string{"github.com/dunglas/httpsfv"}
	rootTestNeeds = []string{"pgregory.net/rapid", "go.uber.org/goleak"}
)

// rootPackage is a package of the root module with what it imports directly, in its code and in its tests.
type rootPackage struct {
	ImportPath                         string
	Imports, TestImports, XTestImports []string
}

// TestRootModuleNeedsLittle holds the root module to the standard library and httpsfv, and its tests to those, rapid
// and goleak. Tests that need a store, a driver or a broker live in the module of that, or in lab.
func TestRootModuleNeedsLittle(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports,TestImports,XTestImports", "./...")
	cmd.Dir = moduleRoot
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var packages []rootPackage
	var inModule []string
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var pkg rootPackage
		err := dec.Decode(&pkg)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("output of go list: %v", err)
		}
		packages, inModule = append(packages, pkg), append(inModule, pkg.ImportPath)
	}
	if !slices.Contains(inModule, module) {
		t.Fatal("go list did not name the root package: the check would see nothing")
	}
	allowed := func(dep string, others ...string) bool {
		return standard(dep) || slices.Contains(inModule, dep) || under(dep, append(others, rootNeeds...)...)
	}
	for _, pkg := range packages {
		for _, dep := range pkg.Imports {
			if !allowed(dep) {
				t.Errorf("%s imports %s", pkg.ImportPath, dep)
			}
		}
		for _, dep := range slices.Concat(pkg.TestImports, pkg.XTestImports) {
			if !allowed(dep, rootTestNeeds...) {
				t.Errorf("the tests of %s import %s", pkg.ImportPath, dep)
			}
		}
	}
}
