package sealed_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/sealed"
)

// content are the types that hold what is to be sealed.
var content = []reflect.Type{
	reflect.TypeFor[store.Response](), reflect.TypeFor[store.Checkpoint](), reflect.TypeFor[store.Content](),
	reflect.TypeFor[store.ExternalEvent](), reflect.TypeFor[outbox.Message](), reflect.TypeFor[store.Record](),
}

// TestAllContentIsSealed: a method of any capability that takes or returns content is written here. One that is only
// handed on, such as that of a capability that is new, would carry it to the store inside as it is.
func TestAllContentIsSealed(t *testing.T) {
	t.Parallel()
	written := writtenMethods(t)
	methods := reflect.TypeFor[*sealed.Store]()
	carrying := 0
	for i := range methods.NumMethod() {
		m := methods.Method(i)
		if !carries(m.Type, 0) {
			continue
		}
		carrying++
		if !written[m.Name] {
			t.Errorf("%s carries content and is handed on as it is", m.Name)
		}
	}
	if carrying < 15 {
		t.Errorf("only %d methods are seen to carry content", carrying)
	}
}

// carries reports whether a type leads to content.
func carries(typ reflect.Type, depth int) bool {
	for _, c := range content {
		if typ == c {
			return true
		}
	}
	if depth > 6 || strings.HasPrefix(typ.PkgPath(), "database/") || typ.PkgPath() == "time" {
		return false
	}
	switch typ.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Chan:
		return carries(typ.Elem(), depth+1)
	case reflect.Map:
		return carries(typ.Key(), depth+1) || carries(typ.Elem(), depth+1)
	case reflect.Struct:
		for i := range typ.NumField() {
			if carries(typ.Field(i).Type, depth+1) {
				return true
			}
		}
	case reflect.Func:
		first := 0
		if depth == 0 {
			first = 1 // its receiver
		}
		for i := first; i < typ.NumIn(); i++ {
			if carries(typ.In(i), depth+1) {
				return true
			}
		}
		for i := range typ.NumOut() {
			if carries(typ.Out(i), depth+1) {
				return true
			}
		}
	}
	return false
}

// writtenMethods are those that this package writes on its store.
func writtenMethods(t *testing.T) map[string]bool {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	written := make(map[string]bool)
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range parsed.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv == nil {
				continue
			}
			if star, ok := f.Recv.List[0].Type.(*ast.StarExpr); ok {
				if name, ok := star.X.(*ast.Ident); ok && name.Name == "Store" {
					written[f.Name.Name] = true
				}
			}
		}
	}
	return written
}
