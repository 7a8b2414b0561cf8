package doctest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	fence      = regexp.MustCompile("(?ms)^```.*?^```")
	codeSpan   = regexp.MustCompile("`[^`\n]+`")
	goName     = regexp.MustCompile(`(?:^|[^\w./"])([a-z]+)\.([A-Z]\w*)(?:\.([A-Z]\w*))?`)
	docLink    = regexp.MustCompile(`(?:^|[^\w\]])\[\*?(?:([a-z]+)\.)?([A-Z]\w*)(?:\.([A-Z]\w*))?\](?:[^\w\[({]|$)`)
	sourceFile = regexp.MustCompile("`([a-zA-Z0-9_./-]+\\.(?:go|sql|sh|lua))`")
	link       = regexp.MustCompile(`\]\(([^)#\s]*)(?:#([^)\s]*))?\)`)
	headline   = regexp.MustCompile(`(?m)^#+ (.+)$`)
	notInSlug  = regexp.MustCompile(`[^\w\- ]`)
)

// exported are the exported names of our packages, by package name: "Guard", and "Guard.Handler" for methods and
// fields.
type exported map[string]map[string]bool

// exportedNames reads the packages that users can import.
func exportedNames(t *testing.T) exported {
	t.Helper()
	names := make(exported)
	for _, path := range sourceFiles(t) {
		if strings.HasSuffix(path, "_test.go") || strings.Contains(path, "internal/") || strings.HasPrefix(path, "lab/") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(moduleRoot, path), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if names[file.Name.Name] == nil {
			names[file.Name.Name] = make(map[string]bool)
		}
		for _, decl := range file.Decls {
			collect(names[file.Name.Name], decl)
		}
	}
	return names
}

// sourceFiles returns the Go files of the repository, relative to its root.
func sourceFiles(t *testing.T) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(moduleRoot, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		if entry.IsDir() && path != moduleRoot && (name == "testdata" || strings.HasPrefix(name, ".")) {
			return filepath.SkipDir
		}
		if strings.HasSuffix(name, ".go") {
			rel, err := filepath.Rel(moduleRoot, path)
			if err != nil {
				return err
			}
			files = append(files, filepath.ToSlash(rel))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func collect(names map[string]bool, decl ast.Decl) {
	switch decl := decl.(type) {
	case *ast.FuncDecl:
		if decl.Recv == nil {
			names[decl.Name.Name] = true
			return
		}
		names[receiver(decl.Recv.List[0].Type)+"."+decl.Name.Name] = true
	case *ast.GenDecl:
		for _, spec := range decl.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				names[spec.Name.Name] = true
				collectMembers(names, spec)
			case *ast.ValueSpec:
				for _, name := range spec.Names {
					names[name.Name] = true
				}
			}
		}
	}
}

// collectMembers notes fields and the methods of interfaces.
func collectMembers(names map[string]bool, spec *ast.TypeSpec) {
	var fields *ast.FieldList
	switch of := spec.Type.(type) {
	case *ast.StructType:
		fields = of.Fields
	case *ast.InterfaceType:
		fields = of.Methods
	default:
		return
	}
	for _, field := range fields.List {
		for _, name := range field.Names {
			names[spec.Name.Name+"."+name.Name] = true
		}
	}
}

func receiver(expr ast.Expr) string {
	switch expr := expr.(type) {
	case *ast.StarExpr:
		return receiver(expr.X)
	case *ast.IndexExpr:
		return receiver(expr.X)
	case *ast.Ident:
		return expr.Name
	default:
		return ""
	}
}

// unknown returns the names in a document's sentences that our packages do not have. The methods of a store are not
// looked up, nor a package that shares its name with a client library. Tests and blocks of Go have checks of their own.
func (e exported) unknown(text string) []string {
	var wrong []string
	for _, code := range codeSpan.FindAllString(fence.ReplaceAllString(text, ""), -1) {
		for _, name := range goName.FindAllStringSubmatch(code, -1) {
			names, ours := e[name[1]]
			if !ours || slices.Contains(sharedNames, name[1]) || strings.HasPrefix(name[2], "Test") {
				continue
			}
			full := name[2]
			if name[1] == "store" && (e["sqlite"]["Store."+full] || e["postgres"]["Store."+full]) {
				continue
			}
			if !names[full] {
				wrong = append(wrong, name[1]+"."+full)
				continue
			}
			if name[3] != "" && !names[full+"."+name[3]] {
				wrong = append(wrong, name[1]+"."+full+"."+name[3])
			}
		}
	}
	return wrong
}

// sharedNames are packages that have the same name as the client library that they are made for.
var sharedNames = []string{"kafka", "nats", "amqp", "main", "provider"}

// documents returns the pages of the repository, relative to its root.
func documents(t *testing.T) []string {
	t.Helper()
	var pages []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/decisions/*.md", "*/README.md", "*/*/README.md"} {
		found, err := filepath.Glob(filepath.Join(moduleRoot, pattern))
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, found...)
	}
	if len(pages) < 10 {
		t.Fatalf("found only %d pages", len(pages))
	}
	return pages
}

// TestDocumentsNameWhatExists: names of Go in the pages exist, and so do the files that pages name or link to. The
// changelog is left out: it speaks of names that are gone.
func TestDocumentsNameWhatExists(t *testing.T) {
	t.Parallel()
	names := exportedNames(t)
	for _, page := range documents(t) {
		if filepath.Base(page) == "CHANGELOG.md" {
			continue
		}
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names.unknown(string(text)) {
			t.Errorf("%s: %s does not exist: write what took its place", page, name)
		}
		for _, path := range missingFiles(page, string(text)) {
			t.Errorf("%s: the file %s does not exist", page, path)
		}
	}
}

// TestCommentsLinkToWhatExists: a link in a doc comment, such as [store.Record], leads to a name that is there. Links
// to packages that are not ours are left alone.
func TestCommentsLinkToWhatExists(t *testing.T) {
	t.Parallel()
	names := exportedNames(t)
	links := 0
	for _, path := range sourceFiles(t) {
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(moduleRoot, path), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		own := names[file.Name.Name]
		if strings.HasSuffix(path, "_test.go") || own == nil {
			continue
		}
		for _, group := range file.Comments {
			for _, at := range docLink.FindAllStringSubmatch(group.Text(), -1) {
				links++
				if name, ok := names.leadsTo(at, own); !ok {
					t.Errorf("%s: the link [%s] leads nowhere", path, name)
				}
			}
		}
	}
	if links < 100 {
		t.Errorf("found only %d links", links)
	}
}

// leadsTo reports whether a link leads to a name that exists.
func (e exported) leadsTo(link []string, own map[string]bool) (string, bool) {
	names, name := own, link[2]
	if link[1] != "" {
		names = e[link[1]]
	}
	if link[3] != "" {
		name += "." + link[3]
	}
	return strings.TrimPrefix(link[1]+"."+name, "."), names == nil || names[name]
}

// missingFiles returns the links and source files in a page that lead nowhere.
func missingFiles(page, text string) []string {
	var missing []string
	exists := func(path string) bool {
		_, err := os.Stat(path)
		return err == nil
	}
	for _, target := range link.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		if strings.Contains(target[1], ":") {
			continue
		}
		file, content := filepath.Join(filepath.Dir(page), target[1]), []byte(text)
		if target[1] != "" {
			if content, _ = os.ReadFile(file); !exists(file) {
				missing = append(missing, target[1])
				continue
			}
		}
		if target[2] != "" && !slices.Contains(anchors(string(content)), target[2]) {
			missing = append(missing, target[1]+"#"+target[2])
		}
	}
	if filepath.Base(filepath.Dir(page)) == "decisions" {
		return missing // a decision may speak of files that a later one has removed
	}
	for _, file := range sourceFile.FindAllStringSubmatch(text, -1) {
		if strings.Contains(file[1], "/") && !strings.HasPrefix(file[1], "github.com/") && !exists(filepath.Join(moduleRoot, file[1])) {
			missing = append(missing, file[1])
		}
	}
	return missing
}

// anchors are the names by which links lead to the headings of a page, as GitHub makes them.
func anchors(text string) (names []string) {
	for _, heading := range headline.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		name := notInSlug.ReplaceAllString(strings.ToLower(heading[1]), "")
		names = append(names, strings.ReplaceAll(name, " ", "-"))
	}
	return names
}

// TestVersionsAreThoseInUse: a module that is named with its version on the page of supported versions is required so.
func TestVersionsAreThoseInUse(t *testing.T) {
	t.Parallel()
	var required strings.Builder
	err := filepath.WalkDir(moduleRoot, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Name() == "go.mod" {
			var text []byte
			text, err = os.ReadFile(path)
			required.Write(text)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	modules := regexp.MustCompile("`([a-z0-9./-]+/[a-z0-9./-]+ v[0-9][^` ]*)`").FindAllStringSubmatch(readDocument(t, "versions.md"), -1)
	for _, module := range modules {
		if !strings.Contains(required.String(), "\t"+module[1]+"\n") {
			t.Errorf("docs/versions.md names %s, which no go.mod requires: write the version that is in use", module[1])
		}
	}
	if len(modules) < 5 {
		t.Errorf("found only %d modules in docs/versions.md", len(modules))
	}
}

// TestUnknownNamesAreFound: the check has teeth.
func TestUnknownNamesAreFound(t *testing.T) {
	t.Parallel()
	names := exported{
		"onceward": {"Guard": true, "Guard.Handler": true}, "store": {"Record": true}, "sqlite": {"Open": true, "Store.Update": true},
	}
	text := "Use `onceward.Guard`, `onceward.Guard.Handler` `store.Update` and `store.Record`, not `onceward.Gate` or `onceward.Guard.Handle`.\n" +
		"```go\nonceward.Wait(5)\n```\n`store.Reserve`"
	want := []string{"onceward.Gate", "onceward.Guard.Handle", "store.Reserve"}
	if got := names.unknown(text); !slices.Equal(got, want) {
		t.Errorf("found %v, want %v", got, want)
	}
	if got := missingFiles(moduleRoot+"/docs/page.md", "`docs/nothing.go`, [here](nothing.md#part), [there](spec.md), "+
		"[up](#no-such-part), [there](spec.md#no-such-part), [there](spec.md#4-state-machine), "+
		fmt.Sprintf("`%s`", "lab/doctest/names_test.go")); !slices.Equal(got, []string{"nothing.md", "#no-such-part", "spec.md#no-such-part", "docs/nothing.go"}) {
		t.Errorf("missing files: %v", got)
	}
}
