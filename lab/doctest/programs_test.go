package doctest

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// tags are the build tags of make test: without them gin, and all that imports gin, is compiled a second time.
const tags = "-tags=nomsgpack"

var (
	goBlock   = regexp.MustCompile("(?ms)^```go\n(.*?)^```")
	wholeFile = regexp.MustCompile(`\A(//.*\n)*package `)
	declStart = regexp.MustCompile(`^(func|type|var|const) `)
)

// page is what is checked of one page: its blocks of Go, and the Go that they take as given.
type page struct {
	name, text string
	// given is the name of a Go file with the imports and declarations that the page's fragments take as given.
	given string
}

// TestProgramsCompile type-checks every block of Go in the README and the guides. A block with a package clause is a
// whole file. It belongs to the package that earlier files of that name on the page began, unless it declares a name of
// theirs again, as the next program does: then it begins a package. Any other block is a fragment: declarations and
// statements, which may use what earlier blocks of the page declare and what testdata/NAME.go declares for NAME.md.
func TestProgramsCompile(t *testing.T) {
	t.Parallel()
	names, err := filepath.Glob(filepath.Join(moduleRoot, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	var pages []page
	blocks := 0
	for _, name := range append(names, filepath.Join(moduleRoot, "README.md")) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		rel, err := filepath.Rel(moduleRoot, name)
		if err != nil {
			t.Fatal(err)
		}
		given := filepath.Join("testdata", strings.TrimSuffix(filepath.Base(name), ".md")+".go")
		pages = append(pages, page{name: filepath.ToSlash(rel), text: string(text), given: given})
		blocks += len(goBlock.FindAllString(string(text), -1))
	}
	if blocks < 20 {
		t.Errorf("found only %d blocks", blocks)
	}
	check := newChecker()
	if err := check.preload(pages); err != nil {
		t.Fatalf("what the pages and lab/doctest/testdata import cannot be built: %v", err)
	}
	for _, p := range pages {
		if err := check.page(p); err != nil {
			t.Errorf("%v\nA name that the page takes as given is declared in lab/doctest/%s; "+
				"what is no Go, such as …, is fenced as text.", err, filepath.ToSlash(p.given))
		}
	}
}

// checker type-checks pages. Packages are imported from the export data that the go command has made of them.
type checker struct {
	fset    *token.FileSet
	exports map[string]string // file of export data by import path
	imports types.Importer
}

func newChecker() *checker {
	c := &checker{fset: token.NewFileSet(), exports: make(map[string]string)}
	c.imports = importer.ForCompiler(c.fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(c.exports[path]) })
	return c
}

// preload loads what all pages import, because one call of the go command is quicker than one for each page. What cannot
// be parsed is reported where it is checked.
func (c *checker) preload(pages []page) error {
	var files []*ast.File
	for _, p := range pages {
		if file, err := parser.ParseFile(c.fset, p.given, nil, parser.ImportsOnly); err == nil {
			files = append(files, file)
		}
		for _, block := range goBlock.FindAllStringSubmatch(p.text, -1) {
			if file, err := parser.ParseFile(c.fset, "", block[1], parser.ImportsOnly); err == nil {
				files = append(files, file)
			}
		}
	}
	return c.load(files)
}

// page checks the blocks of a page in their order, and returns all that is wrong.
func (c *checker) page(p page) error {
	source, err := os.ReadFile(p.given)
	if errors.Is(err, fs.ErrNotExist) {
		source, err = []byte("package page\n"), nil
	}
	if err != nil {
		return err
	}
	given, err := parser.ParseFile(c.fset, p.given, source, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	var wrong []error
	add := func(err error) {
		if err != nil && !slices.ContainsFunc(wrong, func(e error) bool { return e.Error() == err.Error() }) {
			wrong = append(wrong, err) // what an earlier block declares is checked again with each later one
		}
	}
	var packages [][]*ast.File
	for _, at := range goBlock.FindAllStringSubmatchIndex(p.text, -1) {
		text, line := p.text[at[2]:at[3]], 1+strings.Count(p.text[:at[2]], "\n")
		if wholeFile.MatchString(text) {
			file, err := parser.ParseFile(c.fset, "", lineDirective(p.name, line)+text, parser.SkipObjectResolution)
			add(err)
			if err == nil {
				packages = addFile(packages, file)
			}
			continue
		}
		file, err := parser.ParseFile(c.fset, "", fragment(p.name, line, text, given), parser.SkipObjectResolution)
		if err != nil {
			add(err)
			continue
		}
		given = without(given, file)
		c.check(true, add, given, file)
		given.Decls = append(given.Decls, file.Decls[len(given.Imports):len(file.Decls)-1]...)
	}
	for _, files := range packages {
		c.check(false, add, files...)
	}
	return errors.Join(wrong...)
}

// addFile adds a file to the last package of its name, or begins one if there is none or it declares a name again.
func addFile(packages [][]*ast.File, file *ast.File) [][]*ast.File {
	for i, files := range slices.Backward(packages) {
		if files[0].Name.Name != file.Name.Name {
			continue
		}
		if slices.ContainsFunc(files, func(f *ast.File) bool { return overlap(declared(f.Decls...), declared(file.Decls...)) }) {
			break
		}
		packages[i] = append(files, file)
		return packages
	}
	return append(packages, []*ast.File{file})
}

// check type-checks one package. In a fragment a variable or an import may be without use.
func (c *checker) check(fragment bool, report func(error), files ...*ast.File) {
	if err := c.load(files); err != nil {
		report(err)
		return
	}
	config := types.Config{Importer: c.imports, Error: func(err error) {
		if e, ok := errors.AsType[types.Error](err); !ok || !fragment || !e.Soft {
			report(err)
		}
	}}
	_, _ = config.Check("page", c.fset, files, nil) // its error is the first of those that are reported
}

// load lets the go command make the export data of what the files import, in one call for all that is new.
func (c *checker) load(files []*ast.File) error {
	args := []string{"list", tags, "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}"}
	flags := len(args)
	for _, file := range files {
		for _, spec := range file.Imports {
			path, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			if c.exports[path] == "" && !slices.Contains(args, path) {
				args = append(args, path)
			}
		}
	}
	if len(args) == flags {
		return nil
	}
	command := exec.Command("go", args...)
	var stderr bytes.Buffer
	command.Dir, command.Stderr = moduleRoot, &stderr
	out, err := command.Output()
	if err != nil {
		return fmt.Errorf("go %s: %w: %s", strings.Join(args, " "), err, &stderr)
	}
	for line := range strings.Lines(string(out)) {
		if path, export, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			c.exports[path] = export
		}
	}
	return nil
}

// fragment makes a file of a block that is none: with the imports of what is given, the block's declarations, and its
// statements in a function. Lines keep their numbers on the page.
func fragment(page string, line int, text string, given *ast.File) string {
	var decls, statements strings.Builder
	var last *strings.Builder
	into := &statements
	for i, code := range strings.Split(text, "\n") {
		if declStart.MatchString(code) {
			into = &decls
		}
		if into != last {
			into.WriteString(lineDirective(page, line+i))
		}
		into.WriteString(code + "\n")
		last = into
		if code != "" && !strings.HasPrefix(code, "\t") && !strings.HasSuffix(code, "{") && !strings.HasSuffix(code, "(") {
			into = &statements // a declaration has ended with this line
		}
	}
	var file strings.Builder
	file.WriteString("package page\n")
	for _, spec := range given.Imports {
		name := ""
		if spec.Name != nil {
			name = spec.Name.Name
		}
		fmt.Fprintf(&file, "import %s %s\n", name, spec.Path.Value)
	}
	return file.String() + decls.String() + "func _() (_ error) {\n" + statements.String() + "return\n}\n"
}

func lineDirective(page string, line int) string { return fmt.Sprintf("//line %s:%d\n", page, line) }

// without returns what is given but for what a later file of the page declares again.
func without(given, later *ast.File) *ast.File {
	again := declared(later.Decls...)
	left := *given
	left.Decls = nil
	for _, decl := range given.Decls {
		if gen, ok := decl.(*ast.GenDecl); ok {
			kept := *gen
			kept.Specs = slices.DeleteFunc(slices.Clone(gen.Specs), func(spec ast.Spec) bool {
				return overlap(declared(&ast.GenDecl{Specs: []ast.Spec{spec}}), again)
			})
			decl = &kept
		}
		if !overlap(declared(decl), again) {
			left.Decls = append(left.Decls, decl)
		}
	}
	return &left
}

// declared are the names that declarations add to their package.
func declared(decls ...ast.Decl) map[string]bool {
	names := make(map[string]bool)
	for _, decl := range decls {
		collect(names, decl)
	}
	delete(names, "_")
	return names
}

func overlap(a, b map[string]bool) bool {
	for name := range a {
		if b[name] {
			return true
		}
	}
	return false
}

// TestProgramsThatDoNotCompile: the check has teeth, and says where on the page.
func TestProgramsThatDoNotCompile(t *testing.T) {
	t.Parallel()
	given := filepath.Join(t.TempDir(), "page.go")
	if err := os.WriteFile(given, []byte("package page\nimport \"os\"\nvar name string\nfunc show(any) {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	check := newChecker()
	fenced := func(code string) string { return "# Page\n\n```go\n" + code + "\n```\n" }
	const program = "package main\n\nimport \"os\"\n\nfunc main() { os.Exit(0) }"
	for name, test := range map[string]struct{ text, complaint string }{
		"a program":                      {fenced(program), ""},
		"a program that is wrong":        {fenced(strings.Replace(program, "Exit", "Leave", 1)), "page.md:8: undefined: os.Leave"},
		"a program that uses too little": {fenced(strings.Replace(program, "os.Exit(0)", "", 1)), `page.md:6: "os" imported and not used`},
		"two programs":                   {fenced(program) + fenced("// The second.\n"+program), ""},
		"two files of a package":         {fenced("package shop\n\nfunc f() { g() }") + fenced("package shop\n\nfunc g() {}"), ""},
		"a package twice":                {fenced("package shop\n\ntype T int") + fenced("package shop\n\ntype T int"), ""},
		"a package that lacks a file":    {fenced("package shop\n\nfunc f() { g() }"), "page.md:6: undefined: g"},
		"statements":                     {fenced("n, err := os.Open(name)\nif err != nil {\n\treturn err\n}"), ""},
		"statements that are wrong":      {fenced("var n int = name"), "page.md:4: cannot use name"},
		"declarations among statements": {
			fenced("show(price(7))\n\nfunc price(n int) price2 {\n\treturn price2(n)\n}\n\ntype price2 int\n\nshow(1)\nshow(missing)"),
			"page.md:13: undefined: missing",
		},
		"what an earlier block declares":    {fenced("func f() int { return 1 }") + fenced("func g() int { return f() }\nshow(g())"), ""},
		"what a later block declares":       {fenced("show(f())") + fenced("func f() int { return 1 }"), "page.md:4: undefined: f"},
		"what is declared again":            {fenced("type name int") + fenced("func show(name) {}\nshow(name(1))"), ""},
		"a name that nothing declares":      {fenced("unheard()"), "page.md:4: undefined: unheard"},
		"an elision":                        {fenced("show(1)\n…"), "page.md:5"},
		"a package that does not exist":     {fenced(strings.Replace(program, `"os"`, `"nothing"`, 1)), "nothing"},
		"what is not Go and says so":        {"```text\nshow(…)\n```\n", ""},
		"two blocks, and one error of each": {fenced("func f() { one() }") + fenced("f()"), "page.md:4: undefined: one"},
	} {
		t.Run(name, func(t *testing.T) {
			err := check.page(page{name: "page.md", text: test.text, given: given})
			switch {
			case test.complaint == "" && err != nil:
				t.Errorf("the check refuses what is in order: %v", err)
			case test.complaint != "" && (err == nil || !strings.Contains(err.Error(), test.complaint)):
				t.Errorf("the check said %v, want %q", err, test.complaint)
			case strings.HasPrefix(name, "two blocks") && strings.Contains(err.Error(), "\n"):
				t.Errorf("the check said it more than once: %v", err)
			}
		})
	}
}
