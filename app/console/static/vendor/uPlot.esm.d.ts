// What the console uses of uPlot: all that its options say is theirs.

export default class uPlot {
  constructor(options: object, data: ArrayLike<number | null>[], element: HTMLElement);
  setData(data: ArrayLike<number | null>[]): void;
  setSize(size: { width: number; height: number }): void;
  destroy(): void;
}
