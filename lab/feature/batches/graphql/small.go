package mutations

import (
	"github.com/graphql-go/graphql/language/lexer"
	"github.com/graphql-go/graphql/language/source"
)

const (
	maxDepth = 16
	maxWords = 4000 // of which 100 mutations take less
)

// small says whether a query can be read in a moment: a few kilobytes of nested braces keep the library busy for
// minutes, before any mutation is counted.
func small(query string) bool {
	next, depth := lexer.Lex(source.NewSource(&source.Source{Body: []byte(query)})), 0
	for range maxWords {
		token, err := next(0)
		switch {
		case err != nil || token.Kind == lexer.EOF:
			return true // the library says what is wrong with it
		case token.Kind == lexer.BRACE_L || token.Kind == lexer.BRACKET_L || token.Kind == lexer.PAREN_L:
			depth++
		case token.Kind == lexer.BRACE_R || token.Kind == lexer.BRACKET_R || token.Kind == lexer.PAREN_R:
			depth--
		}
		if depth > maxDepth {
			return false
		}
	}
	return false
}
