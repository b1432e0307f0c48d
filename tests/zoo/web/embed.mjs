// node embed.mjs MODEL.onnx PIXELS N H W C: raw uint8 pixels to a JSON list of float32 embeddings, by onnxruntime-web.
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [model, pixels, ...shape] = process.argv.slice(2);
const web = createRequire(`${process.cwd()}/`).resolve("onnxruntime-web");
const ort = await import(pathToFileURL(web).href).then((module) => module.default ?? module);
ort.env.wasm.numThreads = 1;
const session = await ort.InferenceSession.create(new Uint8Array(await readFile(model)), { executionProviders: ["wasm"] });
const input = new ort.Tensor("uint8", new Uint8Array(await readFile(pixels)), shape.map(Number));
const { embeddings } = await session.run({ [session.inputNames[0]]: input }); // pixels; images where the graph resizes
console.log(JSON.stringify(Array.from(embeddings.data)));
