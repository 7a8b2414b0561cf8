// Command count measures the source of a checkout: lines and files by what they are for, and what the style asks for.
// It takes the directory of the checkout, so that one program counts the tree before a change and after it by the same
// rules:
//
//	git worktree add ../before COMMIT && go run ./lab/count ../before && go run ./lab/count .
package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// The limits of the style.
const (
	longLine  = 120
	shortFile = 60
)

// kind is what a file is for. The first one that matches counts.
type kind struct {
	name, about string
	match       func(file string, text []byte) bool
}

// The directories of a kind include those that held the same things before the repository had modules.
var (
	labDirs = regexp.MustCompile(`^(lab|bench|chaos|internal/` +
		`(aftermath|arrows|departures|documents|model|proc|servers|servicetest|watchdog))/`)
	exampleDirs = regexp.MustCompile(`^(examples|internal/provider)/.*\.go$`)
	generated   = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)
	kinds       = []kind{
		{
			"lab", "Go under lab but lab/feature, and what tests share (internal/servers, proc, watchdog), with their tests",
			func(file string, _ []byte) bool {
				return labDirs.MatchString(file) && !strings.HasPrefix(file, "lab/feature/")
			},
		},
		{
			"tests", "all other files *_test.go, the Go of lab/feature, and generated Go",
			func(file string, text []byte) bool {
				return strings.HasSuffix(file, "_test.go") || path.Ext(file) == ".go" &&
					(strings.HasPrefix(file, "lab/feature/") || generated.Match(text))
			},
		},
		{
			"suite", "store/storetest",
			func(file string, _ []byte) bool {
				return strings.HasPrefix(file, "store/storetest/") && path.Ext(file) == ".go"
			},
		},
		{
			"examples", "examples and the simulated provider",
			func(file string, _ []byte) bool { return exampleDirs.MatchString(file) },
		},
		{
			"product", "all other Go files: the library, its stores and the command",
			func(file string, _ []byte) bool { return path.Ext(file) == ".go" },
		},
		{"docs", "all Markdown files", func(file string, _ []byte) bool { return path.Ext(file) == ".md" }},
	}
)

// oddWords are words that the style avoids, in comments and in names. Requests are in flight; an execution is no
// flight.
var (
	oddWords = regexp.MustCompile(`(?i)\b(somebody|nobody|anew|whoever|flights?|landings?|aftermath|departures|foresee)\b`)
	inFlight = regexp.MustCompile(`(?i)in[ -]flight`)
)

// source is a file that was counted.
type source struct {
	name                string
	kind                string
	lines, code, tokens int
	text                []byte
}

// load reads what is to be counted below a directory.
func load(dir string) (sources []*source, err error) {
	err = filepath.WalkDir(dir, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if name := entry.Name(); file != dir && (name == "testdata" || strings.HasPrefix(name, ".")) {
				return fs.SkipDir
			}
			return nil
		}
		name, err := filepath.Rel(dir, file)
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		if ext := path.Ext(name); ext != ".go" && ext != ".md" {
			return nil
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(kinds, func(k kind) bool { return k.match(name, text) })
		s := &source{name: name, kind: kinds[i].name, lines: bytes.Count(text, []byte("\n")), text: text}
		if path.Ext(name) == ".go" {
			s.code, s.tokens = code(text)
		}
		sources = append(sources, s)
		return nil
	})
	if err == nil && len(sources) == 0 {
		err = fmt.Errorf("count: %s holds nothing to count", dir)
	}
	return sources, err
}

// code counts the lines on which there is more than a comment, and the tokens but for commas and semicolons: their
// number stays the same where a line is only broken.
func code(text []byte) (lines, tokens int) {
	files := token.NewFileSet()
	file := files.AddFile("", files.Base(), len(text))
	var s scanner.Scanner
	s.Init(file, text, nil, 0)
	used := make(map[int]bool)
	for {
		pos, tok, literal := s.Scan()
		if tok == token.EOF {
			return len(used), tokens
		}
		if tok == token.SEMICOLON && literal == "\n" {
			continue
		}
		if tok != token.SEMICOLON && tok != token.COMMA {
			tokens++
		}
		first := file.Line(pos)
		for line := first; line <= first+strings.Count(literal, "\n"); line++ {
			used[line] = true
		}
	}
}

// rootNames counts what the root package exports: its types, and all of its names.
func rootNames(sources []*source) (types, names int, err error) {
	for _, s := range sources {
		if s.kind != "product" || path.Dir(s.name) != "." {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), s.name, s.text, parser.SkipObjectResolution)
		if err != nil {
			return 0, 0, err
		}
		for _, decl := range file.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil && d.Name.IsExported() {
					names++
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					switch spec := spec.(type) {
					case *ast.TypeSpec:
						if spec.Name.IsExported() {
							types, names = types+1, names+1
						}
					case *ast.ValueSpec:
						for _, name := range spec.Names {
							if name.IsExported() {
								names++
							}
						}
					}
				}
			}
		}
	}
	return types, names, nil
}

// report prints everything that is counted.
func report(out io.Writer, sources []*source) error {
	fmt.Fprintf(out, "%-10s %7s %8s %8s %8s\n", "", "files", "lines", "code", "tokens")
	for _, k := range kinds {
		var files, lines, code, tokens int
		for _, s := range sources {
			if s.kind == k.name {
				files, lines, code, tokens = files+1, lines+s.lines, code+s.code, tokens+s.tokens
			}
		}
		fmt.Fprintf(out, "%-10s %7d %8d %8d %8d   %s\n", k.name, files, lines, code, tokens, k.about)
	}
	types, names, err := rootNames(sources)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "\nroot package: %d exported types, %d exported names\n", types, names)
	goFiles := slices.DeleteFunc(slices.Clone(sources), func(s *source) bool { return s.kind == "docs" })
	for _, k := range []string{"product", "any kind"} {
		longest := slices.MaxFunc(goFiles, func(a, b *source) int {
			return cmp.Or(compareBool(a.kind == k, b.kind == k), cmp.Compare(a.lines, b.lines))
		})
		fmt.Fprintf(out, "longest Go file, %s: %s, %d lines\n", k, longest.name, longest.lines)
	}
	short := perKind(goFiles, func(s *source) int { return toInt(s.lines < shortFile) })
	fmt.Fprintf(out, "Go files under %d lines: %s\n", shortFile, short)
	fmt.Fprintf(out, "Go lines over %d characters, a tab counted as one: %s\n", longLine, perKind(goFiles, longLines))
	odd := make(map[string]int)
	for _, s := range goFiles {
		if path.Dir(s.name) == "lab/count" {
			continue
		}
		for _, word := range oddWords.FindAll(inFlight.ReplaceAll(s.text, nil), -1) {
			odd[strings.ToLower(string(word))]++
		}
	}
	fmt.Fprintf(out, "odd words in Go files:%s\n", listed(odd))
	return nil
}

func longLines(s *source) (n int) {
	for line := range bytes.Lines(s.text) {
		n += toInt(utf8.RuneCount(bytes.TrimRight(line, "\n")) > longLine)
	}
	return n
}

// perKind sums something up by kind.
func perKind(sources []*source, of func(*source) int) string {
	sums := make(map[string]int)
	total := 0
	for _, s := range sources {
		sums[s.kind] += of(s)
		total += of(s)
	}
	return fmt.Sprintf("%d (%s )", total, listed(sums))
}

func listed(counts map[string]int) string {
	if len(counts) == 0 {
		return " none"
	}
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(&text, " %s %d", name, counts[name])
	}
	return text.String()
}

func compareBool(a, b bool) int { return toInt(a) - toInt(b) }

func toInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

func run(args []string, out io.Writer) error {
	if len(args) != 1 {
		return errors.New("usage: count DIRECTORY")
	}
	sources, err := load(args[0])
	if err != nil {
		return err
	}
	return report(out, sources)
}

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
