// What the console uses of uPlot: all that its options say is theirs.

export default class uPlot {
  constructor(options: object, data: (number | null | undefined)[][], element: HTMLElement);
  setData(data: (number | null | undefined)[][]): void;
  setSize(size: { width: number; height: number }): void;
  destroy(): void;
}
