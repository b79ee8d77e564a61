// Browsers refuse to start workers on pages that are read from disk. The search is one: run it in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.body.appendChild(Object.assign(document.createElement("iframe"), { hidden: true }))
      this.inner = frame.contentWindow
      this.inner.document.open()
      this.inner.document.write(`<script>postMessage = data => parent.postMessage(data, "*")</script>`)
      this.inner.document.write(`<script src="${url}"></script>`)
      this.inner.document.close()
      this.loaded = new Promise(resolve => this.inner.addEventListener("load", resolve))
      addEventListener("message", event => {
        if (event.source === this.inner) this.dispatchEvent(new MessageEvent("message", { data: event.data }))
      })
    }

    postMessage(data) {
      this.loaded.then(() => this.inner.dispatchEvent(new MessageEvent("message", { data })))
    }
  }
}
