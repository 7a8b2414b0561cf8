#!/bin/sh
# Prints the packages whose tests `make quick` runs: those that start no server. Of lab, what runs processes or searches
# for minutes is left out too. The slowest come first, so that no processor waits for them at the end.
set -eu
imports='{{join .Imports " "}} {{join .TestImports " "}} {{join .XTestImports " "}}'
"${GO:-go}" list -f "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} $imports{{end}}" work |
	awk '
		/\/internal\/servers( |$)/ { next }
		$1 ~ /\/lab\// && $1 !~ /\/lab\/(doctest|importrules|count|progress|release)$/ { next }
		$1 ~ /\/store\/sqlite$/ { slowest = $1; next }
		$1 ~ /\/(store\/storetest|examples\/boltstore)$/ { slow = slow $1 "\n"; next }
		NF { others = others $1 "\n" }
		END { printf "%s\n%s%s", slowest, slow, others }'
